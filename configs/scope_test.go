package configs

import (
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

func TestServes(t *testing.T) {
	for _, c := range []struct {
		namespaces, labels []string
		want               bool
	}{
		{nil, nil, true},
		{[]string{"pay", "shop"}, nil, true},
		{[]string{"pay"}, nil, false},
		{nil, []string{"tier=web", "public", "empty="}, true},
		{nil, []string{"tier=web", "internal"}, false},
		{nil, []string{"tier=db"}, false},
		{nil, []string{"tier="}, false},
		{[]string{"shop"}, []string{"tier"}, true},
		{[]string{"pay"}, []string{"tier"}, false},
	} {
		d := Dataplane{Namespaces: c.namespaces, Labels: c.labels}
		s := vip.Service{Key: vip.ServiceKey{Namespace: "shop", Name: "web"}, Labels: map[string]string{"tier": "web", "public": "yes", "empty": ""}}
		expect.Equal(t, d.Serves(&s), c.want, "%v %v", c.namespaces, c.labels)
	}
}
