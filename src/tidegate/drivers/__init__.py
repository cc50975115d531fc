"""The drivers. Each is loaded when first named; none imports another. What several use lies beside them."""
