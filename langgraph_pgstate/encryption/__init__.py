"""Encryption of content under data keys of tenants, users or threads. A master key wraps the data keys."""

from langgraph_pgstate.encryption.masters import CallableMasterKey, LocalMasterKey, MasterKey
from langgraph_pgstate.encryption.options import Encryption, Subject
from langgraph_pgstate.encryption.services import AwsMasterKey, GoogleMasterKey, VaultMasterKey

__all__ = [
    "AwsMasterKey",
    "CallableMasterKey",
    "Encryption",
    "GoogleMasterKey",
    "LocalMasterKey",
    "MasterKey",
    "Subject",
    "VaultMasterKey",
]
