"""Servers of the integration tests, all on the loopback address."""

import secrets

import pytest

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "canary-key-id",
    "AWS_SECRET_ACCESS_KEY": "canary-secret-key",
    "AWS_REGION": "us-east-1",
}


@pytest.fixture(scope="session")
def s3_endpoint():
    """The address of an S3 server that lasts as long as the tests."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_endpoint, monkeypatch, tmp_path):
    """The s3:// name of a fresh bucket. This process and its children reach it; the cache is below tmp_path."""
    for name, value in (
        CREDENTIALS | {"AWS_ENDPOINT_URL": s3_endpoint, "COSMOS_CACHE": str(tmp_path / "cache")}
    ).items():
        monkeypatch.setenv(name, value)
    from cosmos_reason import s3

    name = f"bucket-{secrets.token_hex(4)}"
    s3.client().create_bucket(Bucket=name)
    return f"s3://{name}"
