"""The parts of `paper_in_miniature.py`: pictures, training, experiments, findings, figures."""
