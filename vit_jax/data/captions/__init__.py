"""Images, or vectors of images, with captions."""
