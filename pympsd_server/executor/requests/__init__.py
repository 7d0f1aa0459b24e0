"""One client's requests: handles, answers, backpressure, and the resources that its records share."""
