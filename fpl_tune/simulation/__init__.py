"""One federated simulation, from the clients' data to the metrics of its rounds."""
