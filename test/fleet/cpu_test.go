//go:build system

package fleet

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/kubetest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/vip/spec"
)

const (
	cpuServices = 10_000
	cpuRest     = 30 * time.Second // how long the CPU time at rest is measured
	// readPause is a pause after which the static source has read a changed file.
	readPause = 200 * time.Millisecond
)

// BenchmarkAgentCPU measures the CPU time of an agent's process for a change of one service among
// 10,000 with three backends each, without the CPU time at rest. The change comes from another
// host, from the agent's own API, from a file of services.d, or from a Kubernetes cluster.
func BenchmarkAgentCPU(b *testing.B) {
	b.Run("fleet", func(b *testing.B) {
		l := newLab(b, cpuShape(3, nil))
		l.fillWith(cpuServices, wide)
		put := func(i int) {
			name := fmt.Sprintf("s%d", i*31%cpuServices)
			_, err := l.agents[0].api.PutService(b.Context(), "default", name, wide(name, i+2), client.Write{})
			l.must("write", err)
		}
		for range b.N {
			cost := l.cpuPerChange(2000, 0, put)
			b.ReportMetric(cost[0], "own-ms/change")
			b.ReportMetric((cost[1]+cost[2])/2, "other-ms/change")
		}
		b.ReportMetric(0, "ns/op")
	})
	for _, files := range []int{cpuServices, cpuServices / 100} {
		b.Run(fmt.Sprintf("static/%d-files", files), func(b *testing.B) {
			dir := b.TempDir()
			write := func(file, weight int) { writeServices(b, dir, file, files, weight) }
			for i := range files {
				write(i, 1)
			}
			l := newLab(b, cpuShape(1, func(*lab) string { return fmt.Sprintf("[[source]]\ntype = \"static\"\npath = %q\n", dir) }))
			l.oneAgentCPU(b, 400, readPause, func(i int) { write(i*31%files, i+2) })
		})
	}
	b.Run("kubernetes", func(b *testing.B) {
		var cluster *kubetest.Cluster
		l := newLab(b, cpuShape(1, func(l *lab) string {
			n := l.net.AddClient("cluster")
			cluster = kubetest.Start(b, kubetest.Options{In: n, Addr: n.Addr4})
			l.must("fill the cluster", fillCluster(b, cluster, cpuServices))
			return fmt.Sprintf("[[source]]\ntype = \"kubernetes\"\nkubeconfig = %q\n", cluster.Kubeconfig(b, "bench", kubetest.Masters))
		}))
		l.oneAgentCPU(b, 400, 20*time.Millisecond, func(i int) {
			path := fmt.Sprintf("%s/s%d", endpointSlices, i*31%cpuServices)
			l.must("change", cluster.Do(b.Context(), "PATCH", path, "application/merge-patch+json", fmt.Appendf(nil, `{"ports": [{"port": %d, "protocol": "TCP"}]}`, 8081+i), nil))
		})
	})
}

func cpuShape(agents int, sources func(*lab) string) shape {
	return shape{servers: 1, agents: agents, reuse: time.Hour, pool: netip.MustParsePrefix("127.96.0.0/17"), sources: sources}
}

// oneAgentCPU waits until the only agent has all services, makes changes, and reports their cost.
func (l *lab) oneAgentCPU(b *testing.B, changes int, pause time.Duration, change func(i int)) {
	b.Helper()
	l.awaitServices(l.agents[0], cpuServices)
	for range b.N {
		b.ReportMetric(l.cpuPerChange(changes, pause, change)[0], "ms/change")
	}
	b.ReportMetric(0, "ns/op")
}

// cpuPerChange makes changes, and returns the CPU time of each agent for one of them, in
// milliseconds.
func (l *lab) cpuPerChange(changes int, pause time.Duration, change func(i int)) []float64 {
	l.t.Helper()
	used := func() (all []time.Duration) {
		for _, a := range l.agents {
			all = append(all, process.CPUTime(l.t, a.proc.Pid()))
		}
		return all
	}
	time.Sleep(cpuRest / 3) // what came before ends
	first := used()
	time.Sleep(cpuRest)
	second, began := used(), time.Now()
	for i := range changes {
		change(i)
		time.Sleep(pause)
	}
	took := time.Since(began)
	cost := make([]float64, len(l.agents))
	for i, third := range used() {
		total, rest := third-second[i], second[i]-first[i]
		l.t.Logf("%s: %v for %d changes in %v, %v at rest in %v", l.agents[i].name, total, changes, took.Round(time.Millisecond), rest, cpuRest)
		cost[i] = (total.Seconds() - rest.Seconds()*took.Seconds()/cpuRest.Seconds()) * 1e3 / float64(changes)
	}
	return cost
}

// wide is a service with three backends.
func wide(name string, value int) v1.ServiceSpec {
	s := service(name, value)
	for i := range 2 {
		more := s.Backends[0]
		more.Port, more.Weight = spec.PortNumber(target.Port()+uint16(i)+1), nil
		s.Backends = append(s.Backends, more)
	}
	return s
}

// writeServices replaces one of the files of services.d, as a deployment tool does. The services
// are spread over the files. The file's first backend has the weight.
func writeServices(b *testing.B, dir string, file, files, weight int) {
	b.Helper()
	var text strings.Builder
	for i := file; i < cpuServices; i += files {
		fmt.Fprintf(&text, "[[service]]\nname = \"s%d\"\nports = [{ port = 80 }]\nbackends = [\n", i)
		for k := range 3 {
			fmt.Fprintf(&text, "  { address = %q, port = %d, weight = %d },\n", target.Addr(), int(target.Port())+k, weight)
			weight = 1
		}
		text.WriteString("]\n")
	}
	path := filepath.Join(dir, fmt.Sprintf("%d.toml", file))
	err := os.WriteFile(path+".new", []byte(text.String()), 0o644)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	must.Succeed(b, err)
}

const endpointSlices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"

// fillCluster creates Services with three endpoints each.
func fillCluster(b *testing.B, c *kubetest.Cluster, services int) error {
	var group errgroup.Group
	group.SetLimit(16)
	for i := range services {
		group.Go(func() error {
			text := fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s%d"}, "spec": {"type": "LoadBalancer",
				"loadBalancerClass": "ironvip.io/vip", "allocateLoadBalancerNodePorts": false, "ports": [{"port": 80}]}}`, i)
			if err := c.Do(b.Context(), "POST", "/api/v1/namespaces/default/services", "application/json", text, nil); err != nil {
				return err
			}
			text = fmt.Appendf(nil, `{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
				"metadata": {"name": "s%[1]d", "labels": {"kubernetes.io/service-name": "s%[1]d"}}, "ports": [{"port": 8080, "protocol": "TCP"}], "endpoints": [`, i)
			for k := range 3 {
				if k > 0 {
					text = append(text, ',')
				}
				addr := netip.AddrFrom4([4]byte{172, 16 + byte(i>>12), byte(i >> 4), byte(i<<4 + k)})
				text = fmt.Appendf(text, `{"addresses": [%q], "conditions": {"ready": true}}`, addr)
			}
			return c.Do(b.Context(), "POST", endpointSlices, "application/json", append(text, "]}"...), nil)
		})
	}
	return group.Wait()
}
