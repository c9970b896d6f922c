"""Shards: tars as webdataset writes them and parquet files, in a folder or an object store."""
