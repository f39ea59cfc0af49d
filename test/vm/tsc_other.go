//go:build linux && !amd64

package main

func clockParameters() string { return "" }
