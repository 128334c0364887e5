"""What the demo is made of: a small model in the published layout, and clips to teach it."""
