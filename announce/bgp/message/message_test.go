package message_test

import (
	"bufio"
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/test/expect"
)

func TestReadMessage(t *testing.T) {
	ff := strings.Repeat("\xff", 16)
	for _, c := range []struct {
		name, in     string
		typ          message.Type
		code, sub    uint8
		data, failed string
	}{
		{"keepalive", ff + "\x00\x13\x04", message.TypeKeepalive, 0, 0, "", ""},
		{"skipped update", ff + "\x00\x17\x02\x00\x00\x00\x00", message.TypeUpdate, 0, 0, "", ""},
		{"marker", "\xfe" + ff[1:] + "\x00\x13\x04", 0, message.CodeHeader, message.HeaderNotSynchronized, "", ""},
		{"long keepalive", ff + "\x00\x14\x04\x00", 0, message.CodeHeader, message.HeaderBadLength, "\x00\x14", ""},
		{"short", ff + "\x00\x12\x04", 0, message.CodeHeader, message.HeaderBadLength, "\x00\x12", ""},
		{"short open", ff + "\x00\x1c\x01", 0, message.CodeHeader, message.HeaderBadLength, "\x00\x1c", ""},
		{"oversized", ff + "\x10\x01\x02", 0, message.CodeHeader, message.HeaderBadLength, "\x10\x01", ""},
		{"type 0", ff + "\x00\x13\x00", 0, message.CodeHeader, message.HeaderBadType, "\x00", ""},
		{"type 6", ff + "\x00\x13\x06", 0, message.CodeHeader, message.HeaderBadType, "\x06", ""},
		{"end", "", 0, 0, 0, "", "EOF"},
		{"reset in the middle", ff + "\x00\x30\x02\x00", 0, 0, 0, "", "in the middle of an UPDATE"},
	} {
		typ, _, err := message.Read(bufio.NewReader(strings.NewReader(c.in)))
		var n *message.Notification
		switch {
		case c.code != 0 && (!errors.As(err, &n) || n.Code != c.code || n.Subcode != c.sub || string(n.Data) != c.data):
			t.Errorf("%s: %#v, want notification %d/%d %x", c.name, err, c.code, c.sub, c.data)
		case c.code == 0 && (err == nil) != (c.failed == "") || c.failed != "" && !strings.Contains(err.Error(), c.failed):
			t.Errorf("%s: error %v, want %q", c.name, err, c.failed)
		case typ != c.typ:
			t.Errorf("%s: %v", c.name, typ)
		}
	}
}

func FuzzReadMessage(f *testing.F) {
	f.Add(sampleOpen.Append(nil))
	f.Add(message.AppendKeepalive(message.AppendEndOfRIB(nil, message.IPv6)))
	f.Add((&message.Notification{Code: 6, Subcode: 2, Data: []byte("\x05hello")}).Append(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bufio.NewReader(bytes.NewReader(in))
		for {
			typ, body, err := message.Read(r)
			if err != nil {
				return
			}
			switch typ {
			case message.TypeOpen:
				message.ParseOpen(body)
			case message.TypeNotification:
				expect.True(t, message.ParseNotification(body).Explain(1, netip.Addr{}) != "", "no reason")
			}
		}
	})
}

func FuzzParseOpen(f *testing.F) {
	f.Add(sampleOpen.Append(nil)[message.HeaderSize:])
	f.Fuzz(func(t *testing.T, in []byte) {
		o, err := message.ParseOpen(in)
		if err != nil {
			return
		}
		again, err := message.ParseOpen(o.Append(nil)[message.HeaderSize:])
		if err != nil || again.ASN != o.ASN || again.GracefulRestart != o.GracefulRestart || again.RouteRefresh != o.RouteRefresh || again.ExtendedNextHop != o.ExtendedNextHop {
			t.Errorf("%+v becomes %+v, %v", o, again, err)
		}
	})
}
