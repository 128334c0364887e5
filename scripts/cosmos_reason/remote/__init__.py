"""What lies elsewhere: S3 (`s3`), the Hub (`hub.fetch_model`), chat servers (`chat.ChatServer`),
and the names of models (`model_names.canonical`)."""
