"""Feed parts: how many data-loading processes each rank gets."""
