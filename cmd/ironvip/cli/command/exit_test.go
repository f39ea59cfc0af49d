package command

import (
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

// Hints with REST calls become hints with commands on the command line.
func TestHintsSpeakOfCommands(t *testing.T) {
	for hint, want := range map[string]string{
		"": "",
		"create it first: PUT /v1/services/default/nope; list services: GET /v1/services": "create it first: ironvip service apply; list services: ironvip service list",
		"the agent keeps trying; GET /v1/dataplane shows the state of the dataplane":      "the agent keeps trying; ironvip dataplane show shows the state of the dataplane",
		"GET /v1/services/default/web/backends":                                           "ironvip backend list",
		"see GET /v1/services/NAMESPACE/NAME/backends for this node alone":                "see ironvip backend list for this node alone",
		"GET /v1/services/default/web":                                                    "GET /v1/services/default/web",
		"GET /v1/dataplane/diff, GET /v1/status":                                          "ironvip dataplane diff, ironvip status",
		"GET /v1/sources lists them":                                                      "ironvip source list lists them",
		"PUT /v1/services/default/nope":                                                   "ironvip service apply",
		"register again: PUT /v1/services/a/b/backends/10.1.0.1:80":                       "register again: PUT /v1/services/a/b/backends/10.1.0.1:80",
		"change services.d/web.toml":                                                      "change services.d/web.toml",
	} {
		expect.Equal(t, inCommands(hint), want, "%q", hint)
	}
}
