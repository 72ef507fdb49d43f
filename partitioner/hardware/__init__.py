"""What is planned for: named devices, what is known of them and of the links between them."""
