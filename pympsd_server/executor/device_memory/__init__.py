"""The memory that clients hold on the device, and what they lack, reported to the owner."""
