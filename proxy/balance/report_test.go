package balance

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// A Report and the totals cost what has traffic or trouble: idle services and backends are not visited.
func TestReportOfManyServices(t *testing.T) {
	b := New(Options{Own: netip.Addr.IsLoopback, Files: 1000, Log: slog.New(slog.DiscardHandler)})
	cost := func(services int) float64 {
		var all []*Frontend
		for i := range services {
			spec := specOf(vip.RoundRobin, 0, 0, 0, web1, web2)
			spec.Service.Name, spec.Key.Port = fmt.Sprintf("s%d", i), uint16(i+1)
			all = append(all, b.NewFrontend(spec))
		}
		f := all[0]
		end := f.wakened().all[0]
		f.Connected(f.Tallies(end))
		b.Refuse(f.Service(), serviceFull)
		end.Passive.Refused(errors.New("refused"))
		r := b.Report()
		expect.Len(t, r.Services, 1, "services in the report")
		expect.Len(t, r.Failures, 1, "backends in the report")
		expect.Len(t, b.reported, 1, "services that a report visits, of %d", services)
		busy := 0
		b.Busy(func(one *Frontend) { busy++; expect.Equal(t, one, f) })
		expect.Equal(t, busy, 1, "frontends with traffic")
		allocs := testing.AllocsPerRun(10, func() { b.Report() })
		for _, f := range all {
			f.Close()
		}
		expect.Empty(t, b.reported, "services after all are gone")
		expect.Empty(t, b.Report().Failures, "backends after all are gone")
		b.Busy(func(*Frontend) { t.Error("a closed frontend has traffic") })
		return allocs
	}
	expect.Equal(t, cost(1000), cost(10), "allocations of a report")
}
