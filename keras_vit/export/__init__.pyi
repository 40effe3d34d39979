from keras_vit.export.exporting import TOLERANCES as TOLERANCES
from keras_vit.export.exporting import ExportOptions as ExportOptions
from keras_vit.export.exporting import ExportReport as ExportReport
from keras_vit.export.exporting import export as export
from keras_vit.export.format import Format as Format
from keras_vit.export.formats import FORMATS as FORMATS
from keras_vit.export.formats import PRECISIONS as PRECISIONS
