package consultest

import (
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func (s *Server) arguments() []string {
	args := []string{"agent", "-config-file=" + filepath.Join(s.dir, "config.json")}
	if s.opts.Memory {
		args = append(args, "-dev")
	}
	return args
}

// configure writes the configuration of a server in a cluster of that size. Join lists the gossip
// addresses of the members.
func (s *Server) configure(size int, join []string) {
	s.t.Helper()
	o := s.opts
	addr := o.Addr.String()
	c := map[string]any{
		"node_name": s.Name, "datacenter": s.Datacenter, "server": true,
		"data_dir":  s.data(),
		"bind_addr": addr, "advertise_addr": addr, "advertise_addr_wan": addr, "client_addr": addr,
		"ports": map[string]any{
			"http": int(s.ports.http), "https": -1, "server": int(s.ports.rpc), "serf_lan": int(s.ports.serfLAN), "serf_wan": int(s.ports.serfWAN),
			"dns": -1, "grpc": -1, "grpc_tls": -1,
		},
		"addresses":   map[string]any{"http": strings.Join([]string{addr, "unix://" + s.Socket}, " ")},
		"performance": map[string]any{"raft_multiplier": 1}, // the fastest elections that operators configure
		// Keep a killed member, because it will return.
		"autopilot":            map[string]any{"cleanup_dead_servers": false},
		"connect":              map[string]any{"enabled": false},
		"retry_join":           join,
		"retry_interval":       "500ms",
		"retry_interval_wan":   "500ms",
		"disable_update_check": true,
		"log_level":            "info",
	}
	if !o.Memory {
		c["bootstrap_expect"] = size
	}
	if o.WAN != nil {
		c["retry_join_wan"] = []string{o.WAN.gossip(o.WAN.ports.serfWAN)}
	}
	if o.ACL {
		c["acl"] = map[string]any{
			"enabled": true, "default_policy": "deny", "enable_token_persistence": true,
			"tokens": map[string]any{"initial_management": s.Token, "agent": s.Token},
		}
	}
	if o.TLS {
		// Only the socket is unencrypted. Consul requires a port for it.
		merge(c, map[string]any{
			"ports":     map[string]any{"http": int(s.ports.lock), "https": int(s.ports.http)},
			"addresses": map[string]any{"http": "unix://" + s.Socket, "https": addr},
			"tls": map[string]any{"https": map[string]any{
				"ca_file": s.TLS.CA, "cert_file": s.TLS.serverCert, "key_file": s.TLS.serverKey, "verify_incoming": true,
			}},
		})
	}
	merge(c, o.Config)
	s.writeConfig(c)
}

func (s *Server) writeConfig(c map[string]any) {
	s.t.Helper()
	b, err := json.MarshalIndent(c, "", "\t")
	s.must("the configuration", err)
	s.must("the configuration", os.WriteFile(filepath.Join(s.dir, "config.json"), b, 0o600))
}

// merge overwrites the settings of into with those of over, table by table.
func merge(into, over map[string]any) {
	for key, value := range over {
		sub, isTable := value.(map[string]any)
		old, wasTable := into[key].(map[string]any)
		if isTable && wasTable {
			old = maps.Clone(old)
			merge(old, sub)
			into[key] = old
			continue
		}
		into[key] = value
	}
}

// transport connects to the server from the server's namespace.
func (s *Server) transport() *http.Transport {
	tr := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: asking}).DialContext,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     time.Minute,
	}
	if s.opts.In != nil {
		tr.DialContext = s.opts.In.DialContext
	}
	if s.TLS != nil {
		tr.TLSClientConfig = s.TLS.config.Clone()
	}
	return tr
}
