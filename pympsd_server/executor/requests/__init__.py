"""The requests of one client: handles, answers, backpressure, and the resources that its records share."""
