"""The configuration file of protocol 3: text to a checked plan, plan against state to changes. Pure."""
