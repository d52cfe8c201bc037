"""Feed parts decide how many data-loading processes each rank gets."""
