package dashboard

import (
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

func TestTunnel(t *testing.T) {
	at := netip.MustParseAddrPort("127.0.0.1:8000")
	for _, c := range []struct{ session, user, sudo, want string }{
		{"", "ann", "", ""},
		{"192.0.2.9 50000 10.0.0.1 22", "ann", "", "ssh -N -L 8000:127.0.0.1:8000 ann@10.0.0.1"},
		{"192.0.2.9 50000 10.0.0.1 2222", "root", "ann", "ssh -N -p 2222 -L 8000:127.0.0.1:8000 ann@10.0.0.1"},
		{"2001:db8::9 50000 2001:db8::1 22", "", "", "ssh -N -L 8000:127.0.0.1:8000 2001:db8::1"},
		{"nonsense", "ann", "", ""},
	} {
		env := map[string]string{"SSH_CONNECTION": c.session, "USER": c.user, "SUDO_USER": c.sudo}
		expect.Equal(t, tunnel(func(name string) string { return env[name] }, at), c.want, "%+v", c)
	}
}
