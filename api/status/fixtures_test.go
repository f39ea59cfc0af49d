package status

import "github.com/ironvip/ironvip/pipeline/pipelinetest"

// The sample services.
var (
	key         = pipelinetest.Key
	addrs       = pipelinetest.Addrs
	service     = pipelinetest.Service
	protocol    = pipelinetest.Protocol
	port        = pipelinetest.Port
	nodePort    = pipelinetest.NodePort
	on          = pipelinetest.On
	hostAddrs   = pipelinetest.HostAddrs
	unsupported = pipelinetest.Unsupported
	local       = pipelinetest.Local
	onNode      = pipelinetest.OnNode
)
