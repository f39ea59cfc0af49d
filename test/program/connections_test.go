//go:build system || vm

package program

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
)

// connectionLine is one line of "dataplane connections -o json".
type connectionLine struct{ Service, Frontend, Client, Backend, State string }

func (h *host) connections() (out []connectionLine) {
	h.t.Helper()
	for line := range strings.Lines(h.ok("dataplane", "connections", "-o", "json")) {
		var c connectionLine
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			h.t.Fatalf("%v in %q", err, line)
		}
		out = append(out, c)
	}
	return out
}

// listsConnections: the command lists an open connection with its client and backend, and no longer once
// it is closed (with IPVS, it is not established any more).
func listsConnections(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	h.start()
	addr := h.put("web", a) + ":8080"
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	want := connectionLine{Service: "web", Frontend: addr + "/tcp", Client: conn.LocalAddr().String(), Backend: a.addr, State: "ESTABLISHED"}
	if all := h.connections(); !slices.Contains(all, want) {
		t.Errorf("not listed: %+v, want %+v", all, want)
	}
	conn.Close()
	h.eventually("the closed connection is not established any more", func() error {
		if all := h.connections(); slices.Contains(all, want) {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
}
