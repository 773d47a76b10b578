"""Encryption of content: data keys per tenant, user or thread, which a master key wraps."""

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
