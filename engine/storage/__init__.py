"""Where keys and values live; the only part of the engine that may import torch."""
