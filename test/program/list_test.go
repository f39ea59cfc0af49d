//go:build system

package program

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkServiceList runs `ironvip service list` of 10,000 healthy services with three backends each. The
// time of an operation is that of the whole command, from its start to its end.
func BenchmarkServiceList(b *testing.B) {
	const services = 10_000
	h := newHost(b)
	h.edit("ironvip.toml", fmt.Sprintf("resync_interval = %q\n", resync), "")
	h.edit("ironvip.toml", h.pool+".0/24", "127.112.0.0/16")
	var file strings.Builder
	backends := []*backend{newBackend(b, "a"), newBackend(b, "b"), newBackend(b, "c")}
	for i := range services {
		file.WriteString(service(fmt.Sprintf("s%05d", i), "", backends...))
	}
	h.write("services.d/all.toml", file.String())
	h.start()
	h.eventually("all services are healthy", func() error {
		if n := strings.Count(h.ok("service", "list", "--state", "healthy", "-o", "name"), "\n"); n != services {
			return fmt.Errorf("%d services", n)
		}
		return nil
	})
	for b.Loop() {
		if n := strings.Count(h.ok("service", "list"), "\n"); n != services+1 {
			b.Fatalf("%d lines", n)
		}
	}
}
