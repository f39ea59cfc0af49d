package ipvs

import (
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/vip"
)

// parseGeneric parses a message of generic netlink.
func (k *fakeKernel) parseGeneric(h netlink.Header, data []byte) *message {
	cmd := data[0]
	if h.Type < unix.NLMSG_MIN_TYPE {
		panic("a control message, which the kernel passes over without an answer")
	}
	if h.Type == unix.GENL_ID_CTRL {
		m := &message{typ: h.Type, what: "look up IPVS"}
		m.do = func() error {
			if !k.module {
				return unix.ENOENT
			}
			m.answer = [][]byte{netlink.AppendAttr16([]byte{unix.CTRL_CMD_NEWFAMILY, 2, 0, 0}, unix.CTRL_ATTR_FAMILY_ID, k.ipvsFamily)}
			return nil
		}
		return m
	}
	m := &message{typ: h.Type}
	known := func(do func() error) func() error {
		return func() error {
			if !k.module || h.Type != k.ipvsFamily {
				return unix.ENOENT
			}
			return do()
		}
	}
	if cmd == kernel.CmdGetService && h.Flags&unix.NLM_F_DUMP != 0 {
		m.what = "list services"
		m.do = known(func() error {
			for _, s := range k.services {
				m.answer = append(m.answer, serviceMessage(&s.Service))
			}
			return nil
		})
		return m
	}
	switch cmd {
	case kernel.CmdGetConfig:
		m.what = "read the timeout"
		m.do = known(func() error {
			m.answer = append(m.answer, kernel.AppendIdleTimeout([]byte{kernel.CmdSetConfig, 1, 0, 0}, k.idle))
			return nil
		})
		return m
	case kernel.CmdSetConfig:
		m.what = "set the timeout"
		m.do = known(func() (err error) {
			k.idle, err = kernel.DecodeIdleTimeout(data)
			return err
		})
		return m
	}
	s, _, err := kernel.DecodeService(data)
	if err != nil {
		panic(err)
	}
	if s.Mark != 0 {
		s.Key = keyOfMark(s.Mark, vip.FamilyOf(s.Key.Addr))
	}
	switch cmd {
	case kernel.CmdGetService:
		m.what = "read service " + s.Key.String()
		m.do = known(func() error {
			if k.services[s.Key] == nil {
				return unix.ESRCH
			}
			m.answer = append(m.answer, serviceMessage(&k.services[s.Key].Service))
			return nil
		})
		return m
	case kernel.CmdGetDest:
		m.what = "list destinations of " + s.Key.String()
		m.do = known(func() error {
			if k.services[s.Key] == nil {
				return nil
			}
			for _, d := range k.services[s.Key].list() {
				m.answer = append(m.answer, kernel.AppendDest([]byte{kernel.CmdNewDest, 1, 0, 0}, &d, true))
			}
			return nil
		})
		return m
	}
	o := op{cmd: cmd, service: &s}
	if cmd == kernel.CmdNewDest || cmd == kernel.CmdSetDest || cmd == kernel.CmdDelDest {
		d, err := kernel.DecodeDest(data, s.Key.Addr)
		if err != nil {
			panic(err)
		}
		o.dest = d.Dest
	}
	m.what = o.String()
	m.do = known(func() error {
		if errno := k.carryOut(&o); errno != 0 {
			return errno
		}
		return nil
	})
	return m
}

func serviceMessage(s *kernel.Service) []byte {
	t := *s
	t.Flags |= kernel.FlagHashed
	return kernel.AppendService([]byte{kernel.CmdNewService, 1, 0, 0}, &t, true)
}

// keyOfMark returns a fakeKernel's key for a service by mark.
func keyOfMark(mark uint32, f vip.Family) vip.FrontendKey {
	k := vip.FrontendKey{Addr: netip.IPv4Unspecified(), Port: uint16(mark >> 16), LastPort: uint16(mark), Protocol: vip.TCP}
	if f == vip.IPv6 {
		k.Addr = netip.IPv6Unspecified()
	}
	return k
}

// age records that a destination is the newest.
func (s *fakeService) age(a netip.AddrPort) {
	if s.added == nil {
		s.added, s.last = map[netip.AddrPort]int{}, map[netip.AddrPort]uint32{}
	}
	s.adds++
	s.added[a] = s.adds
}

// list returns the destinations, the newest first.
func (s *fakeService) list() []kernel.Dest {
	all := slices.SortedFunc(maps.Values(s.dests), kernel.CompareDests)
	slices.SortStableFunc(all, func(a, b kernel.Dest) int { return s.added[b.Addr] - s.added[a.Addr] })
	return all
}

// carryOut changes a service or a destination, and answers as IPVS does.
func (k *fakeKernel) carryOut(o *op) unix.Errno {
	s := k.services[o.service.Key]
	switch o.cmd {
	case kernel.CmdNewService, kernel.CmdSetService:
		switch {
		case o.cmd == kernel.CmdNewService && s != nil:
			return unix.EEXIST
		case o.cmd == kernel.CmdSetService && s == nil:
			return unix.ESRCH
		case !k.schedulers[o.service.Scheduler] && o.service.Scheduler != noScheduler:
			return unix.ENOENT
		case o.service.Key.Addr.Is6() && (o.service.Netmask < 1 || o.service.Netmask > 128):
			return unix.EINVAL
		}
		if s == nil {
			s = &fakeService{dests: map[netip.AddrPort]kernel.Dest{}}
			k.services[o.service.Key] = s
		}
		s.Service = *o.service
		return 0
	}
	if s == nil {
		return unix.ESRCH
	}
	if o.cmd == kernel.CmdDelService {
		delete(k.services, o.service.Key)
		return 0
	}
	_, there := s.dests[o.dest.Addr]
	switch {
	case o.cmd == kernel.CmdNewDest && there:
		return unix.EEXIST
	case o.cmd != kernel.CmdNewDest && !there:
		return unix.ENOENT
	case o.cmd == kernel.CmdDelDest:
		delete(s.dests, o.dest.Addr)
		return 0
	case o.dest.Lower > o.dest.Upper, int32(o.dest.Weight) < 0:
		return unix.ERANGE
	case o.cmd == kernel.CmdNewDest && !k.loopback && (k.device == nil || !k.device.up):
		return unix.EINVAL
	}
	s.dests[o.dest.Addr] = o.dest
	if o.cmd == kernel.CmdNewDest {
		s.age(o.dest.Addr)
	}
	if o.cmd == kernel.CmdNewDest || o.dest.Weight > 0 {
		s.last[o.dest.Addr] = o.dest.Weight
	}
	return 0
}

// foreignPort is the port of backends that tests add without the Target.
const foreignPort = 9

// traffic simulates clients of every backend of every UDP service of ours.
func (k *fakeKernel) traffic() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, s := range k.services {
		for a, d := range s.dests {
			if s.Mark == 0 && key.Protocol == vip.UDP && d.Weight > 0 && a.Port() != foreignPort {
				k.entries[conntrack.Flow{Frontend: key, Backend: a}] = struct{}{}
			}
		}
	}
}

// put adds a service without the Target.
func (k *fakeKernel) put(s kernel.Service, dests ...kernel.Dest) {
	f := &fakeService{Service: s, dests: map[netip.AddrPort]kernel.Dest{}}
	for _, d := range dests {
		f.dests[d.Addr] = d
		f.age(d.Addr)
	}
	k.services[s.Key] = f
}
