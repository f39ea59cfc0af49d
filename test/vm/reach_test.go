//go:build linux

package main

import (
	"strings"
	"testing"
)

func TestReachArgs(t *testing.T) {
	if got := reachArgs(nil, "/bin/vmrun"); got != nil {
		t.Errorf("without ports there is a network: %q", got)
	}
	for _, tc := range []struct {
		name, self, want string
		ports            []uint16
	}{
		{"one", "/bin/vmrun", ",guestfwd=tcp:10.0.2.100:80-cmd:'/bin/vmrun' -relay 80", []uint16{80}},
		{"two", "/bin/vmrun", ",guestfwd=tcp:10.0.2.100:80-cmd:'/bin/vmrun' -relay 80,guestfwd=tcp:10.0.2.100:81-cmd:'/bin/vmrun' -relay 81", []uint16{80, 81}},
		{"a name with a space, a comma and a quote", "/it's, here/vmrun", `,guestfwd=tcp:10.0.2.100:80-cmd:'/it'\''s,, here/vmrun' -relay 80`, []uint16{80}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := strings.Join(reachArgs(tc.ports, tc.self), " ")
			if want := "-netdev user,id=host,restrict=on,ipv6=off,net=10.0.2.0/24" + tc.want + " -device virtio-net-pci,netdev=host,romfile="; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}
