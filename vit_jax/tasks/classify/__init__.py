"""Image classification, also by networks that are only used (resnet)."""
