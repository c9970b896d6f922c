"""Sets of images by name: those that TFDS has prepared, and official ones, which are fetched."""
