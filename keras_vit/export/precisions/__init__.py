"""What changes the precision of an exported float32 file: one module per runtime, none of which needs Keras."""
