"""Speed and accuracy, measured in one run: `python -m benchmarks`."""
