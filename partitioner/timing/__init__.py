"""What a placed model's steps take on this machine, in turns with one device and with TensorFlow's own replicas."""
