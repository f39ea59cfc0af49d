package configs

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/internal/tomlfile"
)

// Every key has a value in TOML that the file could have, and the line that set it.
func TestValuesInEffect(t *testing.T) {
	path := filepath.Join(t.TempDir(), ConfigName)
	c, problems := Parse(path, []byte(`[node]
name = "lb1"
[consul]
token_file = "token"
[ipam]
pod_cidrs = [
  "10.244.0.0/16",
]
[[pool]]
name = "lan"
cidrs = ["192.0.2.0/24"]
[[source]]
type = "consul"
[[source]]
type = "static"
path = "services.d"
[[api.role]]
role = "viewer"
user = "root"
[[source]]
type = "dns"
[[source.service]]
name = "db"
host = "db.example.com"
ports = [ { port = 5432, node_port = "auto" } ]
labels = { team = "shop" }
health = { type = "tcp" }
`))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	got := map[string]Value{}
	values := c.Values()
	for _, v := range values {
		if _, twice := got[v.Key]; twice {
			t.Errorf("%s is listed twice", v.Key)
		}
		got[v.Key] = v
		if strings.HasSuffix(v.Key, ".peer") { // no router
			continue
		}
		if _, problem := tomlfile.Parse("x.toml", []byte("x = "+v.Value+"\n")); problem != nil {
			t.Errorf("%s = %s is not TOML: %v", v.Key, v.Value, problem)
		}
	}
	for key, want := range map[string]string{
		"node.name": `"lb1" :2`, "node.state_dir": `"/var/lib/ironvip" `, "api.socket_mode": `"0660" `, "ipam.node_ports": `"30000-32767" `,
		"consul.token_file": `"` + filepath.Join(filepath.Dir(path), "token") + `" :4`, "ipam.pod_cidrs": `["10.244.0.0/16"] :6`, "ipam.reuse_delay": `"5m" `,
		"pool[0].cidrs": `["192.0.2.0/24"] :11`, "pool[0].auto_assign": "true ", "source[0].tag": `"ironvip" `, "source[0].type": `"consul" :13`,
		"source[1].path": `"` + filepath.Join(filepath.Dir(path), "services.d") + `" :16`, "api.role[0].user": `"root" :19`, "health.probers": `"auto" `, "dns.listen": "[] ",
		"source[2].interval": `"10s" `, "source[2].service[0].host": `"db.example.com" :24`, "source[2].service[0].ports[0].port": `5432 :25`,
		"source[2].service[0].ports[0].node_port": `"auto" :25`, "source[2].service[0].labels": `{ "team" = "shop" } :26`, "source[2].service[0].health.type": `"tcp" :27`,
	} {
		if v := got[key]; v.Value+" "+strings.TrimPrefix(strings.TrimPrefix(v.Origin, path), "default") != want {
			t.Errorf("%s: %+v, want %s", key, v, want)
		}
	}
	if !slices.ContainsFunc(values, func(v Value) bool { return v.Key == "log.format" }) || len(values) < 90 {
		t.Errorf("only %d keys", len(values))
	}
}
