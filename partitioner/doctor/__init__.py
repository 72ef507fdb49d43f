"""What a person with GPUs runs first: does this machine do what plans for it assume?"""
