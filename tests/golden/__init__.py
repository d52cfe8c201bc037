"""Three small traces under every preset; result tables as text, compared byte for byte."""
