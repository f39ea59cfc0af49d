package main

import (
	"os"
	"testing"
	"time"
)

func TestPass(t *testing.T) {
	os.Args = []string{"victim", "modules"}
	main()
}

func TestFail(t *testing.T) { t.Error("as asked") }

func TestHang(t *testing.T) { time.Sleep(time.Hour) }
