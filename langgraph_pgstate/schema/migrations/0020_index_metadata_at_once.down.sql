-- Gives the index of metadata its pending list again.

ALTER INDEX /*schema*/threads_metadata_idx RESET (fastupdate);
