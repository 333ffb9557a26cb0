"""The compression call of gateways, `POST /v1/compress`."""
