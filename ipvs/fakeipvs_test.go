package ipvs

import (
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/vip"
)

// parseGeneric reads a message of generic netlink.
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
	if cmd == cmdGetService && h.Flags&unix.NLM_F_DUMP != 0 {
		m.what = "list services"
		m.do = known(func() error {
			for _, s := range k.services {
				m.answer = append(m.answer, serviceMessage(&s.service))
			}
			return nil
		})
		return m
	}
	s, err := decodeService(data)
	if err != nil {
		panic(err)
	}
	if s.fwmark != 0 {
		s.key = keyOfMark(s.fwmark, vip.FamilyOf(s.key.Addr))
	}
	switch cmd {
	case cmdGetService:
		m.what = "read service " + s.key.String()
		m.do = known(func() error {
			if k.services[s.key] == nil {
				return unix.ESRCH
			}
			m.answer = append(m.answer, serviceMessage(&k.services[s.key].service))
			return nil
		})
		return m
	case cmdGetDest:
		m.what = "list destinations of " + s.key.String()
		m.do = known(func() error {
			if k.services[s.key] == nil {
				return nil
			}
			for _, d := range k.services[s.key].list() {
				m.answer = append(m.answer, appendDest([]byte{cmdNewDest, 1, 0, 0}, &d, true))
			}
			return nil
		})
		return m
	}
	o := op{cmd: cmd, service: &s}
	if cmd == cmdNewDest || cmd == cmdSetDest || cmd == cmdDelDest {
		d, err := decodeDest(data, s.key.Addr)
		if err != nil {
			panic(err)
		}
		o.dest = d
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

func serviceMessage(s *service) []byte {
	t := *s
	t.flags |= flagHashed
	return appendService([]byte{cmdNewService, 1, 0, 0}, &t, true)
}

// keyOfMark is the place that a fakeKernel has for a service by mark.
func keyOfMark(mark uint32, f vip.Family) vip.FrontendKey {
	k := vip.FrontendKey{Addr: netip.IPv4Unspecified(), Port: uint16(mark >> 16), LastPort: uint16(mark), Protocol: vip.TCP}
	if f == vip.IPv6 {
		k.Addr = netip.IPv6Unspecified()
	}
	return k
}

// age notes that a destination is the newest.
func (s *fakeService) age(a netip.AddrPort) {
	if s.added == nil {
		s.added, s.last = map[netip.AddrPort]int{}, map[netip.AddrPort]uint32{}
	}
	s.adds++
	s.added[a] = s.adds
}

// list returns the destinations, the newest first.
func (s *fakeService) list() []dest {
	all := slices.SortedFunc(maps.Values(s.dests), compareDests)
	slices.SortStableFunc(all, func(a, b dest) int { return s.added[b.addr] - s.added[a.addr] })
	return all
}

// carryOut changes a service or a destination, and answers as IPVS does.
func (k *fakeKernel) carryOut(o *op) unix.Errno {
	s := k.services[o.service.key]
	switch o.cmd {
	case cmdNewService, cmdSetService:
		switch {
		case o.cmd == cmdNewService && s != nil:
			return unix.EEXIST
		case o.cmd == cmdSetService && s == nil:
			return unix.ESRCH
		case !k.schedulers[o.service.sched] && o.service.sched != noScheduler:
			return unix.ENOENT
		case o.service.key.Addr.Is6() && (o.service.netmask < 1 || o.service.netmask > 128):
			return unix.EINVAL
		}
		if s == nil {
			s = &fakeService{dests: map[netip.AddrPort]dest{}}
			k.services[o.service.key] = s
		}
		s.service = *o.service
		return 0
	}
	if s == nil {
		return unix.ESRCH
	}
	if o.cmd == cmdDelService {
		delete(k.services, o.service.key)
		return 0
	}
	_, there := s.dests[o.dest.addr]
	switch {
	case o.cmd == cmdNewDest && there:
		return unix.EEXIST
	case o.cmd != cmdNewDest && !there:
		return unix.ENOENT
	case o.cmd == cmdDelDest:
		delete(s.dests, o.dest.addr)
		return 0
	case o.dest.lower > o.dest.upper, int32(o.dest.weight) < 0:
		return unix.ERANGE
	case o.cmd == cmdNewDest && !k.loopback && (k.device == nil || !k.device.up):
		return unix.EINVAL
	}
	s.dests[o.dest.addr] = o.dest
	if o.cmd == cmdNewDest {
		s.age(o.dest.addr)
	}
	if o.cmd == cmdNewDest || o.dest.weight > 0 {
		s.last[o.dest.addr] = o.dest.weight
	}
	return 0
}

// foreignPort is that of the backends which tests add behind the Target's back.
const foreignPort = 9

// traffic lets clients come to every backend of every UDP service of ours.
func (k *fakeKernel) traffic() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, s := range k.services {
		for a, d := range s.dests {
			if s.fwmark == 0 && key.Protocol == vip.UDP && d.weight > 0 && a.Port() != foreignPort {
				k.entries[flow{key, a}] = struct{}{}
			}
		}
	}
}

// put makes a service without the Target.
func (k *fakeKernel) put(s service, dests ...dest) {
	f := &fakeService{service: s, dests: map[netip.AddrPort]dest{}}
	for _, d := range dests {
		f.dests[d.addr] = d
		f.age(d.addr)
	}
	k.services[s.key] = f
}
