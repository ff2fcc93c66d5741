"""What a model's folder says without torch: its sizes, tensors, layout and manifest."""
