"""One Kafka transaction per micro-batch or batch write, from the fence to its end."""
