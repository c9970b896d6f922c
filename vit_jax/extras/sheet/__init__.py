"""A contact sheet of what augmentation makes of images."""
