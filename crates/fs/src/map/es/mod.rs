//! The extent-status cache: what is known about a file's blocks without reading its map.
