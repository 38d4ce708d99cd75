"""`make bench`: what the course builds beside what PyTorch has, on real processes."""
