"""What is this input, and what lies in it: manifests, dumps, profiles behind URLs."""
