"""The encoder cache of vLLM: ``ec_connector: StagelinkECConnector``, module ``stagelink.vllm``."""
