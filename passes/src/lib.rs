//! Module to Module to Program: search, partition, pipeline, fusion, buffers, cost; checks
