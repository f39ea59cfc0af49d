//go:build linux && vm

package ipvs

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

const foreignRules = `-A -t 10.0.0.1:80 -s wrr -p 300 -M 255.255.255.0
-a -t 10.0.0.1:80 -r 10.1.0.2:8080 -m -w 3 -x 100 -y 50
-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 1
-A -u [2001:db8::1]:53 -s mh -p 60 -M 64 -b mh-fallback,mh-port
-a -u [2001:db8::1]:53 -r [2001:db8::2]:53 -i -w 1
-A -f 7 -s sh -b sh-port
-a -f 7 -r 10.1.0.1:0 -g -w 0
-A -f 8 -6 -s rr
-A -t 10.0.0.2:0 -s sed -p 60
-a -t 10.0.0.2:0 -r 10.1.0.2:0 -i -w 5 --tun-type gre
-A -u 10.0.0.2:53 -s rr -o
-A --sctp-service 10.0.0.2:99 -s lc
`

// The commands of what others have make the same in another namespace. Services of ours, also by mark, are not among them.
func TestForeign(t *testing.T) {
	lab := netlab.New(t)
	runWith(t, lab.Director, foreignRules, "ipvsadm", "-R")
	want := run(t, lab.Director, "ipvsadm", "-Sn")
	p := newPlane(t, lab.Director)
	ranged := frontend("10.96.0.1:0", vip.TCP, addrs("10.77.1.2:0")...)
	ranged.Key.Port, ranged.Key.LastPort = 100, 199
	p.Create(t, frontend("10.96.0.1:80", vip.TCP, addrs("10.77.1.2:80")...), ranged)
	expect.True(t, strings.Count(run(t, lab.Director, "ipvsadm", "-Sn"), "-A") == strings.Count(want, "-A")+2, "services of ours")
	p.Close()

	var commands [][]string
	lab.Director.Do(func() {
		found := must.Get(Find(t.Context(), Options{Owns: func(a netip.Addr) bool { return a == netip.MustParseAddr("10.96.0.1") }}))(t)
		defer found.Close()
		commands = must.Get(found.Foreign(t.Context(), func(mark uint32) bool { return mark == 8 }))(t)
	})
	text := ""
	for _, c := range commands {
		text += strings.Join(c, " ") + "\n"
	}
	runWith(t, lab.Client, text, "ipvsadm", "-R")
	expect.Equal(t, run(t, lab.Client, "ipvsadm", "-Sn"), strings.Replace(want, "-A -f 8 -6 -s rr\n", "", 1), text)
}
