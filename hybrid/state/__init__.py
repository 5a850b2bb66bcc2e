"""What a sequence holds on the device, at fixed addresses, and how its tokens are drawn."""
